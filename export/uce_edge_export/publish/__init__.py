"""Publishing files: drafts, and folders for Triton and Hugging Face."""
