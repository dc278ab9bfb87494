"""What all forms of a Nsight Systems capture share: source tables in, declared tables out."""
