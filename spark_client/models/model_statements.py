"""Statements about models, which last as long as their RemoteSession.

No SQL parser has them, so they are read from their tokens:

CREATE [OR REPLACE] [TEMPORARY] MODEL [IF NOT EXISTS] name [INPUT (columns)] [OUTPUT (columns)] [COMMENT 'text']
WITH ('function' = 'name', 'parameter or option' = 'value', ...)
DROP [TEMPORARY] MODEL [IF EXISTS] name
SHOW MODELS
{ DESCRIBE | DESC } MODEL name
"""

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType
from sqlglot.tokens import Token, TokenType

from remote_udf.effective_options import canonical
from remote_udf.functions import FunctionKind
from spark_client.base.errors import PlanError
from spark_client.base.options import KNOWN_OPTIONS
from spark_client.base.types import spark_type
from spark_client.functions.arguments import require_arguments
from spark_client.models.model import Model, Models, constant, model_of, outputs_of, require_scalar, type_name
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.text.parsing import Text, place_of_token

__all__ = ["run_model_statement"]

_FUNCTION = "function"
"""The option that names the function."""


def run_model_statement(functions: SqlFunctions, text: Text, *, explained: bool) -> DataFrame | None:
    """Run a statement about models, and return its rows; None for any other text.

    Raises PlanError with the position in the text, or if the text is to be explained.
    """
    statement = _ModelStatement(text)
    if statement.verb is None:
        return None
    if explained:
        raise PlanError("a statement about models has no plan to explain")
    spark, models = functions.spark, functions.session.kept(Models)
    if statement.verb == "SHOW":
        rows = [(model.name, model.function, model.comment) for model in models.values()]
        return spark.createDataFrame(sorted(rows), "model string, function string, comment string")
    if statement.verb in ("DESCRIBE", "DESC"):
        name = statement.name()
        statement.end()
        return spark.createDataFrame(_described(functions, model_of(functions, name)), "key string, value string")
    if statement.verb == "DROP":
        exists = statement.words("IF", "EXISTS")
        name = statement.name()
        statement.end()
        if models.pop(name.casefold(), None) is None and not exists:
            raise PlanError(f"there is no model {name!r}; DROP MODEL IF EXISTS does without")
    else:
        _create(functions, statement)
    return spark.createDataFrame([], "")


def _create(functions: SqlFunctions, statement: "_ModelStatement") -> None:
    absent = statement.words("IF", "NOT", "EXISTS")
    name = statement.name()
    inputs = statement.columns("INPUT")
    outputs = statement.columns("OUTPUT")
    comment = statement.text() if statement.words("COMMENT") else ""
    given = statement.options()
    statement.end()
    models = functions.session.kept(Models)
    known = models.get(name.casefold())
    if known is not None and absent:
        return
    if known is not None and not statement.replaces:
        raise PlanError(f"there is a model {known.name!r} already; CREATE OR REPLACE MODEL replaces it")
    try:
        models[name.casefold()] = _model(functions, name, inputs, outputs, given, comment)
    except PlanError as error:
        raise PlanError(f"model {name!r}: {error}") from None


def _model(
    functions: SqlFunctions, name: str, inputs: StructType | None, outputs: StructType | None,
    given: dict[str, str], comment: str,
) -> Model:  # fmt: skip
    function = given.pop(_FUNCTION, None)
    if function is None:
        raise PlanError(f"WITH lacks '{_FUNCTION}', the name of a scalar function of the server")
    function = functions.remote(function) or function
    spec = functions.spec(function)
    require_scalar(spec)
    constants = {
        parameter.name: constant(parameter.name, given.pop(parameter.name), parameter.type)
        for parameter in spec.parameters if parameter.name in given
    }  # fmt: skip
    # An option with a wrong name may be a key of a service, so its value is not shown.
    unknown = [key for key in given if not any(key in options for options in KNOWN_OPTIONS[FunctionKind.SCALAR])]
    if unknown:
        raise PlanError(
            f"'{unknown[0]}' is neither a parameter of {spec.signature} nor a call option; addresses and keys of "
            "services belong in the server's file of models"
        )
    options = canonical(given, source="WITH", known=KNOWN_OPTIONS[FunctionKind.SCALAR])
    columns = tuple(inputs.fields) if inputs is not None else ()
    model = Model(name, function, outputs_of(spec, outputs, name), constants, options, columns, comment)
    if inputs is not None:
        parameters = model.parameters(spec)[: len(columns)]
        types = dict(zip(parameters, columns, strict=False)) | {
            each.name: StructField(each.name, spark_type(_type_of(constants[each.name], each.type)))
            for each in spec.parameters if each.name in constants
        }  # fmt: skip
        if len(columns) > len(parameters):
            raise PlanError(f"INPUT has {len(columns)} columns, {spec.signature} takes {len(parameters)} besides WITH")
        given_names = [each.name for each in spec.parameters if each.name in types]
        missing = [each.name for each in spec.parameters[: len(given_names)] if each.name not in types]
        if missing:
            raise PlanError(f"parameter '{missing[0]}' precedes '{given_names[-1]}', so it needs a value or a column")
        require_arguments(spec, [types[name] for name in given_names])
    return model


def _type_of(value: object, type_: pa.DataType) -> pa.DataType:
    """The type of a constant: its own if the parameter takes one of several types."""
    return pa.scalar(value).type if pa.types.is_union(type_) else type_


def _described(functions: SqlFunctions, model: Model) -> list[tuple[str, str]]:
    spec = functions.spec(model.function)
    inputs = [f"{each.name} {type_name(each.dataType)}" for each in model.inputs]
    parts = {"function": spec.signature, "input": ", ".join(inputs or model.parameters(spec))}
    parts |= {"output": ", ".join(model.outputs), "comment": model.comment}
    return [*parts.items(), *((key, str(value)) for key, value in {**model.constants, **model.options}.items())]


class _ModelStatement:
    """Reads the tokens of a statement. `verb` is its first word, or None if it is not about models."""

    def __init__(self, text: Text) -> None:
        self._sql = text.readable()
        self._tokens = text.tokens
        self._next = 0
        first = self._tokens[0].text.upper() if self._tokens else ""
        self.verb: str | None = first
        self.replaces = False
        if first == "SHOW":
            # After SHOW, the tokenizer returns the rest as one text.
            rest = " ".join(token.text for token in self._tokens[1:]).rstrip("; \n\t")
            self.verb = first if rest.upper() == "MODELS" else None
            return
        self._next = 1
        self.replaces = first == "CREATE" and self.words("OR", "REPLACE")
        if first in ("CREATE", "DROP"):
            self.words("TEMPORARY")
        is_named = len(self._tokens) > self._next + 1  # DESCRIBE model describes a table
        if first not in ("CREATE", "DROP", "DESCRIBE", "DESC") or not is_named or not self.words("MODEL"):
            self.verb = None

    def words(self, *words: str) -> bool:
        """Skip these words if they come next."""
        found = self._tokens[self._next : self._next + len(words)]
        same = [token.text.upper() for token in found if token.token_type is not TokenType.STRING] == list(words)
        self._next += len(words) if same else 0
        return same

    def name(self) -> str:
        token = self._take("the name of a model", TokenType.VAR, TokenType.IDENTIFIER)
        if self.words("."):
            raise self._error("a model has no catalog or database: its name has one part", token)
        return token.text

    def text(self) -> str:
        return self._take("a text in quotes", TokenType.STRING).text

    def columns(self, word: str) -> StructType | None:
        """The columns in parentheses after a word; None without the word."""
        if not self.words(word):
            return None
        begin = self._take("(", TokenType.L_PAREN)
        depth, end = 1, begin
        while depth:
            end = self._take(f"the end of {word}")
            depth += (end.token_type is TokenType.L_PAREN) - (end.token_type is TokenType.R_PAREN)
        written = self._sql[begin.end + 1 : end.start]
        try:
            columns = StructType.fromDDL(written)
        except (PySparkException, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise self._error(f"{word} ({written}) are not columns with types of Spark: {reason}", begin) from None
        if not isinstance(columns, StructType) or not columns.fields:
            raise self._error(f"{word} has no columns", begin)
        return columns

    def options(self) -> dict[str, str]:
        """The options of WITH ('key' = 'value', ...)."""
        if not self.words("WITH"):
            raise self._error(f"WITH ('{_FUNCTION}' = 'name of a function', ...) is expected")
        self._take("(", TokenType.L_PAREN)
        found: dict[str, str] = {}
        while True:
            key = self._take("the name of an option in quotes", TokenType.STRING)
            self._take("=", TokenType.EQ)
            if key.text in found:
                raise self._error(f"option '{key.text}' is given twice", key)
            found[key.text] = self.text()
            if self._take(", or )", TokenType.COMMA, TokenType.R_PAREN).token_type is TokenType.R_PAREN:
                return found

    def end(self) -> None:
        if self._next < len(self._tokens):
            raise self._error("the end of the statement is expected")

    def _take(self, expected: str, *types: TokenType) -> Token:
        if self._next >= len(self._tokens):
            raise self._error(f"{expected} is expected at the end")
        token = self._tokens[self._next]
        if types and token.token_type not in types:
            raise self._error(f"{expected} is expected")
        self._next += 1
        return token

    def _error(self, message: str, token: Token | None = None) -> PlanError:
        at = token or self._tokens[min(self._next, len(self._tokens) - 1)]
        return PlanError(f"{place_of_token(at)}{message}")
