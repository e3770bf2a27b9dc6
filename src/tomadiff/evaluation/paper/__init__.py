"""The paper's experiments on the model at hand."""
