//! Chat templates: messages to the prompt text a model was trained on.
