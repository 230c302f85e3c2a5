"""One package per method: its maths as pure functions, its executor and its controller."""
