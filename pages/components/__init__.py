"""Small scripts that run in the browser, and the Streamlit components that carry them."""
