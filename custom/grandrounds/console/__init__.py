"""The console: tables of scores, progress and remarks."""
