"""Tables, statistics, curves, matrices and exports, made from the recorded cells. Nothing here draws."""
