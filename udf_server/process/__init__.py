"""Process table functions (FLIP-440): the base class for authors, its declaration, and the processing of segments."""
