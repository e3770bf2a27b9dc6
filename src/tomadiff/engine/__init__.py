"""What a patched model does in a call."""
