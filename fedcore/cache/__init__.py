"""Arrays on disk that can be resumed, memory-mapped and shared by several processes."""
