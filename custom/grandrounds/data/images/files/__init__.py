"""Kinds of image files, each with its rules of how stored values become grey levels and colours."""
