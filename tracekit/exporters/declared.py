"""What the formats that keep the declared Arrow schema share."""

BATCH_ROWS = 1 << 18
