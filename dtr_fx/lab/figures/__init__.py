"""The figures of the paper, drawn anew: pictures, and the numbers in them (extra ``plot``)."""
