//! The acceptance rule: which drafted tokens stand, and the token after them; arithmetic only.
