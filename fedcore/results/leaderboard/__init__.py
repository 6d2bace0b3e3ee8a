"""An honest leaderboard: ranks as intervals, what would separate two rows, and the best within a budget."""
