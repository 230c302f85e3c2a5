"""What leaves a site, how it is protected, and how much protection has been spent."""
