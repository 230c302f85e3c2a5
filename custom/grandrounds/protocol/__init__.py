"""What server and sites exchange: messages, the problem, registrations and the cost of a release."""
