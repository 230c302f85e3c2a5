"""What an article needs of finished runs: tables, figures, methods, checklists and an annex for data protection."""
