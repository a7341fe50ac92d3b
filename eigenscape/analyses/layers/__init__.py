"""Of single layers."""
