//! Next-token distributions: probability, draw, residual; arithmetic only.
