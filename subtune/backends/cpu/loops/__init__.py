"""Parts of loop nests that several families share."""
