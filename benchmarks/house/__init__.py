"""Figures of the project itself: lines, options, commands, words and walks, by part."""
