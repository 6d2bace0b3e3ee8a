"""The array store on disk under the encodings: resumable, memory-mapped, safe for several processes."""
