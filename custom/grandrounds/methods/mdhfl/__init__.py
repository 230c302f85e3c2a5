"""MDH-FL, RHFL and RHFL+: different models and noisy labels; what travels is soft labels on a shared public set."""
