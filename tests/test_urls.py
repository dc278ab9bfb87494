"""No message shows the password, the token or the signature of a URL."""
