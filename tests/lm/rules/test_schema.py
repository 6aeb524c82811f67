"""JSON schemas: every text of a rule is valid; keywords that cannot be kept are refused."""

import itertools
import json
import random
import re

import numpy as np
import pytest
import tokenizers

from bighmm import constraints as c
from bighmm.data.tokenizers import Subwords, Words
from bighmm.infer.rules import work
from bighmm.lm.rules.expression import byte_automaton
from bighmm.lm.rules.schema import schema_pattern
from bighmm.lm.rules.schema_numbers import Interval, integers, numbers
from json_validator import is_valid
from models import random_hmm

NAME = {"type": "string", "minLength": 1, "maxLength": 5}
SCHEMAS = [
    True,
    {},
    {"type": "integer", "minimum": 18, "maximum": 99},
    {"type": "integer", "exclusiveMinimum": -7, "exclusiveMaximum": 3},
    {"type": "integer", "minimum": 1.5},
    {"type": "integer", "maximum": -120, "minimum": -1e3},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "exclusiveMinimum": -3, "maximum": 12, "minimum": -20},
    {"type": ["integer", "null"], "minimum": 4, "maximum": 5},
    {"minimum": 5},
    NAME,
    {"type": "string", "pattern": "^[^a]+-[0-9]{2}$"},
    {"type": "string", "pattern": "cat|^dog.\\w\\d\\s\\S"},
    {"type": "string", "pattern": '^"\\\\[a"]*\\W$'},
    {"pattern": "^(?:ab?){2,3}[^\\s\\w]?$"},
    *({"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid", "ipv4")),
    {"enum": ['a"b', 1, None, 1.5, [1, True], {"a": {}}]},
    {"type": ["string", "integer"], "enum": ["é", 1, None, 2.5]},
    {"const": {"a": [1, 2]}},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "maxItems": 2},
    {"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"const": 1}},
    {"prefixItems": [{"const": 1}, {"type": "null"}], "items": {"type": "boolean"}, "minItems": 1},
    {"prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 2},
    {"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1},
    {"type": "object"},
    {
        "type": "object",
        "additionalProperties": {"const": 1},
        "maxProperties": 2,
        "minProperties": 1,
    },
    {"type": "object", "additionalProperties": False},
    {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}},
    {"type": "object", "required": ["x"], "additionalProperties": {"type": "null"}},
    {"anyOf": [{"type": "integer"}, NAME]},
    {"oneOf": [{"type": "null"}, {"enum": [1, 2]}, {"enum": ["x"]}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": k}}, "required": ["kind"]}
            for k in ("cat", "dog")
        ]
    },
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "people",
        "$defs": {"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "type": "object",
        "properties": {
            "name": {"$ref": "#/$defs/name"},
            "age": {"$ref": "#/$defs/age"},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/name"}, "maxItems": 2},
            "e-mail": {"allOf": [{"type": "string", "pattern": "^[a-z]+@[a-z]+$"}]},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
]


class Writer:
    """Texts of an automaton over bytes."""

    def __init__(self, automaton):
        self.automaton = automaton
        self.rows = automaton.transitions.tolist()
        self.far = dict.fromkeys(np.flatnonzero(automaton.accepting).tolist(), 0)  # from an end
        for distance in itertools.count(1):
            near = {s for s, row in enumerate(self.rows) if not self.far.keys().isdisjoint(row)}
            if not near - self.far.keys():
                break
            self.far |= dict.fromkeys(near - self.far.keys(), distance)
        letters = range(automaton.transitions.shape[1])
        self.members = [np.flatnonzero(automaton.class_of == letter).tolist() for letter in letters]

    def write(self, generator, length=60):
        """A random text; after so many bytes it goes the shortest way to an end."""
        state, text = 0, b""
        while True:
            row = self.rows[state]
            live = [letter for letter, reached in enumerate(row) if reached in self.far]
            if self.automaton.accepting[state] and (
                not live or len(text) > length or generator.random() < 0.2
            ):
                return text.decode()
            if len(text) > length:
                live = [min(live, key=lambda letter: self.far[row[letter]])]
            letter = generator.choice(live)
            text += bytes([generator.choice(self.members[letter])])
            state = row[letter]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:60])
def test_texts_of_a_schema_are_valid(schema):
    writer, generator = Writer(byte_automaton(schema_pattern(schema))), random.Random(1)
    texts = {writer.write(generator) for _ in range(40)}
    for text in texts:
        assert is_valid(json.loads(text), schema), text
    try:
        import jsonschema
    except ImportError:
        return
    for text in texts:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def test_numbers_between_bounds():
    bounds = [None, -1205, -100, -99, -10, -1, 0, 1, 9, 10, 101, 1000]
    whole = [-1206, -1205, -120, -101, -100, -99, -98, -11, -10, -9, -1, 0, 1, 8, 9, 10, 11, 99]
    whole += [100, 101, 102, 999, 1000, 1001, 12345]
    for least, most in itertools.product(bounds, bounds):
        for ends in itertools.product((False, True), repeat=2):
            interval = Interval(least, most, *ends)

            def inside(v, interval=interval):
                low, high = interval.least, interval.most
                return (low is None or v > low or (v == low and not interval.open_least)) and (
                    high is None or v < high or (v == high and not interval.open_most)
                )

            exact, decimal = re.compile(integers(interval)), re.compile(numbers(interval))
            for number in whole:
                assert bool(exact.fullmatch(f"{number}")) == inside(number), interval
                for fraction in ("", ".0", ".50", ".01"):
                    text = f"{number}{fraction}"
                    assert bool(decimal.fullmatch(text)) == inside(float(text)), (interval, text)


REFUSED = {
    "multipleOf": 2,
    "contains": {"type": "null"},
    "minContains": 1,
    "maxContains": 1,
    "unevaluatedItems": False,
    "uniqueItems": True,
    "patternProperties": {"^a": True},
    "propertyNames": {"minLength": 1},
    "unevaluatedProperties": False,
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": True},
    "dependencies": {"a": ["b"]},
    "additionalItems": False,
    "not": {"type": "null"},
    "if": True,
    "then": True,
    "else": True,
    "$dynamicRef": "#a",
    "nullable": True,
    "minimun": 3,
}


@pytest.mark.parametrize("keyword", REFUSED)
def test_keywords_that_cannot_be_kept_are_refused(keyword):
    inner = {"type": ["array", "object", "integer"], keyword: REFUSED[keyword]}
    schema = {"type": "object", "properties": {"a": {"items": inner}}}
    with pytest.raises(ValueError, match=re.escape(f"'{keyword}' at #/properties/a/items is not")):
        schema_pattern(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (False, "# is false; it must be a schema"),
        ({"type": "integr"}, '#/type is "integr"; known are object'),
        ({"type": "string", "format": "iri"}, "'format' at # is \"iri\"; known are date"),
        ({"type": "string", "pattern": "a(?=b)"}, "'pattern' at # cannot be used: .* has assert"),
        ({"type": "string", "pattern": "("}, "'pattern' at # cannot be used: .* malformed"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "'pattern' at # is not supported bes"),
        ({"type": "number", "minimum": 0.5}, "'minimum' at # is 0.5; only whole numbers"),
        ({"type": "integer", "minimum": "3"}, '#/minimum is "3"; it must be a number'),
        ({"type": "integer", "minimum": 10**40}, "#/minimum has more than 30 digits"),
        ({"type": "string", "maxLength": 10**9}, "#/maxLength is 1000000000; it must be 0 to"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "asks for 3 or more"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
            "refers to itself",
        ),
        ({"$ref": "other.json"}, "only references such as"),
        ({"$ref": "#/$defs/b"}, "which is not in the schema"),
        ({"$ref": "#/$defs/a", "minimum": 3}, "'minimum' at # is not supported beside '\\$ref'"),
        ({"anyOf": [{"type": "null"}], "type": "null"}, "'type' at # is not supported beside"),
        ({"anyOf": []}, "#/anyOf is \\[\\]; it must be a list that is not empty"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf has the alternatives 0"),
        ({"oneOf": [{"type": "string"}, {"const": "a"}]}, "a text may satisfy both"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "#/allOf has 2 parts"),
        ({"enum": [1], "type": "string"}, "# allows none of its own values"),
        ({"enum": [1, 5], "minimum": 3}, "'minimum' at # is not supported beside 'enum'"),
        ({"type": "object", "minProperties": 2}, "'minProperties' at #"),
        ({"properties": {"a": True}, "minProperties": 1}, "'minProperties' at #"),
        ({"properties": {"a": True, "b": True}, "maxProperties": 1}, "'maxProperties' at #"),
        ({"required": ["a"], "additionalProperties": False}, "# requires 'a', and allows no such"),
        ({"items": [True]}, "#/items is \\[true\\]; it must be a schema"),
        ({"items": {"$id": "x", "type": "null"}}, "'\\$id' at #/items is not supported"),
    ],
)
def test_errors_of_schemas(schema, reason):
    with pytest.raises(ValueError, match=reason):
        schema_pattern(schema)


def test_a_schema_that_grows_without_end():
    """Each definition has the one before it ten times."""
    definitions = {"d0": {"type": "string"}}
    for i in range(1, 30):
        definitions[f"d{i}"] = {"anyOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 10}
    with pytest.raises(ValueError, match="is too large for a rule"):
        schema_pattern({"$ref": "#/$defs/d29", "$defs": definitions})


WORDS = Words.build(["a"])


def test_a_schema_whose_automaton_is_too_large(monkeypatch):
    monkeypatch.setattr(work, "LIMIT", work.LIMIT // 64)
    items = {"type": "string", "minLength": 1000, "maxLength": 1000}
    schema = {"type": "array", "items": items, "minItems": 1000}
    with pytest.raises(ValueError, match=r"^the rule JSON schema .* is too large") as error:
        c.json_schema(schema, WORDS)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "schema", ["{", "[1", '{"maximum": NaN}', '{"maximum": 1e999}', {"a": {1}}, "[" * 99999]
)
def test_schemas_that_are_not_json(schema):
    with pytest.raises(ValueError, match=r"the JSON schema .* cannot be used: ") as error:
        c.json_schema(schema, WORDS)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("[" + "{}," * 400_000, "it has more than 1,048,576 characters"),
        ('{"type": "null", "type": "string"}', "the name 'type' is there twice"),
        ({"properties": {f"a{i}": {} for i in range(20_000)}}, "too large for a rule"),
        ({"required": [f"a{i}" for i in range(50_000)]}, "too large for a rule"),
        ({"prefixItems": [True] * 100_000}, "too large for a rule"),
        ({"type": [{}]}, "unhashable"),
    ],
    ids=range(6),
)
def test_schemas_that_would_fill_the_memory(schema, reason):
    with pytest.raises(
        ValueError, match=rf"the JSON schema .* cannot be used: .*{reason}"
    ) as error:
        c.json_schema(schema, WORDS)
    assert len(str(error.value)) < 500


def test_alternatives_that_take_long_to_compare(monkeypatch):
    monkeypatch.setattr(work, "LIMIT", work.LIMIT // 64)
    with pytest.raises(ValueError, match=r"^the rule JSON schema .* is too large"):
        c.json_schema({"oneOf": [{"const": i} for i in range(10_000)]}, WORDS)
    c.json_schema({"type": ["null"] * 100_000}, WORDS)


def test_sampled_tokens_are_valid():
    """As the models draw them."""
    tokens = [*'{}[]":,.-0123456789ab', "name", "age", '{"', '":', "true", "null", "12"]
    vocabulary = {token: id for id, token in enumerate(["</s>", *tokens])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens(["</s>"])
    tokenizer = Subwords(model.to_str().encode())
    hmm = random_hmm("blocked-flat", states=6, vocabulary=tokenizer.size, end=0)
    schema = {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 18, "maximum": 120},
            "name": {"type": "string", "maxLength": 30},
            "a": {"type": "number", "exclusiveMinimum": -1, "maximum": 1},
        },
        "required": ["age"],
    }
    rule = c.json_schema(schema, tokenizer)
    for row in hmm.sample(60, rule=rule, max_length=40).tolist():
        assert is_valid(json.loads(tokenizer.decode(row[: row.index(0)])), schema)
