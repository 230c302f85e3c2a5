"""The privacy ledger of a site: an append-only record of what was released."""
