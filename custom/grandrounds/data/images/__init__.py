"""From image files to the views that a network is trained on."""
