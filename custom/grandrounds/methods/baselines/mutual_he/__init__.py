"""MDH-FL on encrypted soft labels."""
