"""FixMatch: pseudo-labels from weak views, learnt on strong views; alone or under federated averaging (SSFL)."""
