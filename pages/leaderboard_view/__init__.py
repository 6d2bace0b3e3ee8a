"""Parts of the page Leaderboard."""
