"""Whatever is written into the files of a dump, reading it gives a run or an error of ours."""

import contextlib
import copy
import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import probe_nb as probe
from probe_nb.errors import ProbeError, RunFormatError

SAMPLES = Path(__file__).parent.parent / "interop" / "samples" / "dumps"


def _small(name, file, keep):
    (path,) = (SAMPLES / name).glob(f"step0/*/{file}")
    said = json.loads(path.read_text())
    if "data" in said:
        said["data"] = dict([*said["data"].items()][:keep])
        return said
    return dict([*said.items()][:keep])


DUMP = _small("statistics_mix_statistics", "dump.json", 12)
CONSTRUCT = _small("statistics_mix_statistics", "construct.json", 30)
STACK = _small("statistics_mix_statistics", "stack.json", 3)
FILES = {"dump.json": DUMP, "construct.json": CONSTRUCT, "stack.json": STACK}

odd = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["NaN", "../x", "Module..forward.0", "_grad", "torch.Tensor", "1e999", "\ud800", "DTensor"])
)  # fmt: skip
value = st.recursive(
    odd,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "dtype",
                    "shape",
                    "Max",
                    "value",
                    "data_name",
                    "md5",
                    "probe_nb",
                    "leaf",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def paths_in(node, path=()):
    yield path
    if isinstance(node, dict):
        for name, each in node.items():
            yield from paths_in(each, (*path, name))
    elif isinstance(node, list):
        for place, each in enumerate(node):
            yield from paths_in(each, (*path, place))


PATHS = [(file, path) for file, said in FILES.items() for path in paths_in(said)]


@st.composite
def mutated(draw):
    """The files of a dump as text, with values put into other places, names renamed, bytes cut."""
    files = copy.deepcopy(FILES)
    for _ in range(draw(st.integers(1, 4))):
        file, path = draw(st.sampled_from(PATHS))
        if not path:
            files[file] = draw(value)
            continue
        node = files[file]
        try:
            for step in path[:-1]:
                node = node[step]
            if isinstance(node, dict) and draw(st.booleans()):
                node[draw(odd.map(str))] = node.pop(path[-1], None)
            else:
                node[path[-1]] = draw(value)
        except (LookupError, TypeError):  # an earlier change took the place away
            continue
    texts = {file: json.dumps(said) for file, said in files.items()}
    cut = draw(st.sampled_from([None, *FILES]))
    if cut:
        texts[cut] = texts[cut][: draw(st.integers(0, len(texts[cut])))]
    return texts


def everything(folder):
    return {path: path.stat().st_size for path in folder.rglob("*")}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_a_changed_dump_is_a_run_or_refused_in_words(tmp_path_factory, texts):
    top = tmp_path_factory.mktemp("dump")
    folder = top / "step0" / "rank0"
    folder.mkdir(parents=True)
    for file, text in texts.items():
        (folder / file).write_bytes(text.encode("utf-8", "surrogatepass"))
    before = everything(top)
    try:
        run = probe.read_dump(top)
    except ProbeError:
        return
    finally:
        assert everything(top) == before
    answers(run, top)


def answers(run, top):
    """Ask what is asked of any run: nothing a dump says may break an answer."""
    assert len(run.df) == len(run)
    run.calls(), run.values(), run.kept(), run.findings(), run.coverage(), run.first_nonfinite()
    repr(run)
    run._repr_mimebundle_()
    assert len(probe.load(run.save(top.parent / f"{top.name}.parquet"))) == len(run)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_in_place_of_a_dump_are_refused_in_words(tmp_path_factory, data):
    top = tmp_path_factory.mktemp("dump")
    (top / "dump.json").write_bytes(data)
    with contextlib.suppress(RunFormatError):
        probe.read_dump(top)
