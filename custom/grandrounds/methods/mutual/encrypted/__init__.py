"""MDH-FL on soft labels that the server adds up and cannot read."""
