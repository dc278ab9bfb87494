"""Convert the source tables of an Nsight Systems file in any format to the declared tables of tracekit."""
