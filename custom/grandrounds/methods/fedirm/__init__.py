"""FedIRM: hospitals without a single label learn how those with labels tell diseases apart (relation matching)."""
