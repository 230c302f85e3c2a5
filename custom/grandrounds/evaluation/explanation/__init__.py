"""What a network looks at, and how its embeddings lie."""
