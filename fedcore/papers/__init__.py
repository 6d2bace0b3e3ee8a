"""What the four papers print, which of our runs stand beside it, and the experiments that repeat it."""
