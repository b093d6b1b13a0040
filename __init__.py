"""refold."""
