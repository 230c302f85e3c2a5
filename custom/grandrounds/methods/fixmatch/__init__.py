"""FixMatch: pseudo-labels from weak views, learned on strong views; alone or under federated averaging (SSFL)."""
