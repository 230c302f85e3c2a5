"""Fed-Align-CL: hospitals with other scanners learn like features, and see first what averaging made them forget."""
