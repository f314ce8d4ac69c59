"""Alternative wordings of expressions: "the sum of a and b" for "a + b"."""

import re

__all__ = ["plainly"]

_X = r"(\w+|#\d+#)"
_OPERAND = r"((?:\w+|#\d+#)(?:\s*[-+*/]\s*(?:\w+|#\d+#))*)"
_NOUN = "constant|literal|value|text|string|number|word|argument|input|parameter"
_WORDINGS: tuple[tuple[str, str], ...] = (
    (rf"\bthe (?:{_NOUN}) (?=#\d+#|\d|\w+\b(?! of\b))", ""),
    (rf"\bthe sum of {_X},? and {_X}", r"(\1 + \2)"),
    (rf"\bthe product of {_X},? and {_X}", r"(\1 * \2)"),
    (rf"\bthe difference of {_X},? and {_X}", r"(\1 - \2)"),
    (rf"\b(?:the )?concatenation of {_X},? and {_X}", r"(\1 || \2)"),
    (rf"\b(?:adds|adding) {_X} to {_X}", r"(\2 + \1)"),
    (rf"\b(?:subtracts) {_X} from {_X}", r"(\2 - \1)"),
    (rf"\bmultiplies {_X} (?:by|with) {_X}", r"(\1 * \2)"),
    (rf"\bincrements {_X} by {_X}", r"(\1 + \2)"),
    (rf"\b(?:increments {_X}|{_X} incremented by (?:one|1))(?= |$)", r"(\1\2 + 1)"),
    (rf"\b(?:doubles|twice) {_X}", r"(2 * \1)"),
    (rf"\b(?:the )?square of {_X}|{_X} squared\b", r"(\1\2 * \1\2)"),
    (rf"\b(?:the )?length of {_X}", r"length(\1)"),
    (rf"\b{_X} (?:in|as) upper ?case|\bupper-?cased? {_X}", r"upper(\1\2)"),
    (rf"\b{_X} (?:in|as) lower ?case|\blower-?cased? {_X}", r"lower(\1\2)"),
    (rf"\bappends {_X} to {_X}", r"(\2 || \1)"),
    (rf"\bprepends {_X} to {_X}", r"(\1 || \2)"),
    (rf"\bprefixes {_X} with {_X}", r"(\2 || \1)"),
    (
        rf"\b(?:an? )?(?:(?:one|two|three|\d+)-element )?array (?:of|with|holding|containing)"
        rf"(?: the)?(?: (?:\w+ )?(?:elements?|values?))? {_OPERAND}(?:,? and {_OPERAND})?",
        r"[\1,\2]",
    ),
    (r"\bplus\b", "+"),
    (r"\bminus\b", "-"),
    (r"\b(?:times|multiplied by)\b", "*"),
    (r"\bdivided by\b", "/"),
    (r"\b(?:and then|then|concatenated with|joined with)\b", "followed by"),
    (r"(?<=#) (?:and|before)\b|\b(?:and|before)(?= #)", " followed by"),
    (r"\b(?:the )?(?:decimal )?(?:string|text) (?:form|representation|value) of\b", "text of"),
)


def plainly(text: str) -> str:
    """Returns the text with every wording replaced outside quotes."""
    quoted: list[str] = []

    def hide(match: re.Match[str]) -> str:
        quoted.append(match[0])
        return f"#{len(quoted) - 1}#"

    plain = re.sub(r"'(?:[^']|'')*'", hide, text)
    for pattern, words in _WORDINGS:
        plain = re.sub(pattern, words, plain, flags=re.IGNORECASE)
    plain = plain.replace(",]", "]")
    return re.sub(r"#(\d+)#", lambda match: quoted[int(match[1])], plain)
