"""Examples; each says at its top how to run it."""
