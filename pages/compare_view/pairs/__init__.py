"""One run or method beside another on the page Compare, down to single images."""
