"""What parties of a federation say to each other: messages, the problem, registration and the cost of a release."""
