"""Writes what texts need: python tools/goldens/tokenizer.py [VOCAB.TXT …]

tests/goldens/data/wordpiece.json: words of small vocabularies and what transformers' BertTokenizer makes of difficult texts with them.
tests/goldens/data/wordpiece_pairs.json: the same for pairs of texts.
tests/goldens/data/bpe.json: tokenizer.json files of byte-level BPE, as the package tokenizers writes them, and what it makes of the
same texts.
"""

import json
import pathlib
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
golden = root / "tests" / "goldens" / "data" / "wordpiece.json"
pair_golden = root / "tests" / "goldens" / "data" / "wordpiece_pairs.json"
bpe_golden = root / "tests" / "goldens" / "data" / "bpe.json"

TEXTS = [
    "Hello, World! It's 2024.",
    "  tabs\tand\nlines \r\n and   spaces ",
    "Ünïcödé ÀÉÎÕÜ ça façon naïve Ångström œuvre ŒUVRE",
    "Straße İstanbul ΣΊΣΥΦΟΣ Ελληνικά Привет Ёлка",
    "漢字とカタカナ、ひらがな。 中文 混合text字",
    "한국어 텍스트",
    "हिन्दी தமிழ் ไทย",
    "e\u0301 combining a\u0308 o\u0302\u0323",
    "zero\u200bwidth soft\u00adhyphen bom\ufeff ctrl\x01\x7f nul\x00 repl\ufffd",
    "no-break\u00a0space thin\u2009space para\u2029graph ideographic\u3000space",
    "quotes “curly” ‘single’ «guillemets» — dash – … ellipsis ¿qué? ¡hola!",
    "$100 + 20% = <tag> a_b x^2 `code` ~tilde| #hash @user C++ and/or",
    "emoji 😀 👩‍👩‍👧 flags 🇩🇪 math 𝒳 ℌ ² ½ ﬁ",
    "unaffable unwanted running runs runner",
    "word" * 26,
    "x" * 100 + " " + "x" * 101,
    "[CLS] [MASK]ed [sep]",
    "",
]
WORDS = """hello world it s 2024 tabs and lines spaces un ##aff ##able want ##ed run ##ning ##s ##ner unicode aeiou
ca facon naive angstrom istanbul 漢 字 中 文 混 合 text と カ ##タ ##カ ##ナ ひ ##ら ##か ##な hin ##di zero ##width soft ##hyphen nul repl
no break space thin para ##graph quotes curly single 100 20 tag a b x 2 code c emoji flags math ##word word ##x e combining o
Hello World It Straße İstanbul Привет привет елка ᄒ ##ᅡ ##ᆫ strasse cls mask sep""".split()
MARKS = ", ! ' . - ` ~ # @ $ % + = < > / ^ _ | [ ] ( ) “ ” ‘ ’ « » — – … ¿ ¡ ? 、 。".split()


def write_golden():
    import transformers

    cases = []
    for cased in (False, True):
        letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + MARKS
        kept = [w for w in WORDS if cased or not any(x.isupper() for x in w)]
        vocabulary += list(dict.fromkeys(kept + letters + ["##" + x for x in letters]))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "vocab.txt"
            path.write_text("\n".join(vocabulary) + "\n")
            words = {word: number for number, word in enumerate(vocabulary)}
            tokenizer = transformers.BertTokenizerFast(vocab=words, do_lower_case=not cased)
            rows = [[text, tokenizer(text)["input_ids"]] for text in TEXTS if "[" not in text]
            cut = tokenizer(TEXTS[0], truncation=True, max_length=6)["input_ids"]
        cases.append({"cased": cased, "vocabulary": vocabulary, "texts": rows, "cut_to_6": [TEXTS[0], cut]})
    content = {"versions": {"transformers": transformers.__version__}, "cases": cases}
    golden.write_text(json.dumps(content, separators=(",", ":")).replace('],["', '],\n["') + "\n")


PAIRS = [("hello world", "it s 2024 tabs and lines"), ("unaffable wanted running runs runner", "hello"), ("", "zero width"), ("hello", ""),
         ("a b x 2", "quotes curly single 100 20"), ("Hello, World! It's 2024.", "tabs and lines")]


def write_pair_golden():
    """Pairs of texts, whole and truncated, with the vocabulary of the first case of wordpiece.json."""
    import transformers

    vocabulary = json.loads(golden.read_text())["cases"][0]["vocabulary"]
    words = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = transformers.BertTokenizerFast(vocab=words, do_lower_case=True)
    rows = []
    for first, second in PAIRS:
        for most in (0, 4, 5, 6, 7, 8, 9, 10, 12, 16, 100):
            cut = {"truncation": "longest_first", "max_length": most} if most else {}
            encoded = tokenizer([first], [second], **cut)  # a single "" would count as no second text
            rows.append([first, second, most, encoded["input_ids"][0], encoded["token_type_ids"][0]])
    content = {"versions": {"transformers": transformers.__version__}, "pairs": rows}
    pair_golden.write_text(json.dumps(content, separators=(",", ":")).replace('],["', '],\n["') + "\n")


BPE_TEXTS = [text for text in TEXTS if text] + [
    "don't we'll they're I've I'm he'd it's IT'S 'tis rock'n'roll ''quoted'' 'S 'll",
    "a  b   c\td\n\n\ne \n f\r\n  g   ",
    " ",
    "   \n",
    "x\u00a0y\u2003z\u3000\u3000w\x85v\x1cu\x0bt",
    "x1y22z ½⅓² Ⅷ ٣٤ 12,345.67 3rd v2.0",
    "==== ---- ... ?! ((([[[{{{ $$$ #### /path/to/file.txt https://example.org/?q=1&r=2",
    "ааааааааааааааааааа bbbbbbbbbbbbbbbbbbbbbbb abababababababab",
    "<|endoftext|x",
]


def write_bpe_golden():
    import tokenizers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    cases = []
    for prefix, size, marks in ((False, 420, ["<|endoftext|>"]), (True, 330, ["<pad>", "<s>", "</s>"])):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(
            BPE_TEXTS * 3,
            trainers.BpeTrainer(vocab_size=size, special_tokens=marks, initial_alphabet=alphabet, show_progress=False),
        )
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        if prefix:
            ends = [(mark, tokenizer.token_to_id(mark)) for mark in ("<s>", "</s>")]
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ends
            )
        rows = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in BPE_TEXTS]
        marked = tokenizer.encode(BPE_TEXTS[0]).ids
        cases.append({"file": tokenizer.to_str(), "texts": rows, "marked": [BPE_TEXTS[0], marked]})
    old = json.loads(cases[0]["file"])  # as files of before 2024 write merges
    old["model"]["merges"] = [" ".join(pair) for pair in old["model"]["merges"]]
    cases.append({**cases[0], "file": json.dumps(old)})
    content = {"versions": {"tokenizers": tokenizers.__version__}, "cases": cases}
    bpe_golden.write_text(json.dumps(content, separators=(",", ":")).replace('],["', '],\n["') + "\n")


if __name__ == "__main__":
    write_golden()
    write_pair_golden()
    write_bpe_golden()
