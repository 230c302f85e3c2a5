"""FedIRM: hospitals without labels match the class relation matrices of those with labels (relation matching)."""
