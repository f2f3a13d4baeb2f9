"""Reads, splits and makes PDFs with whatever is installed; needs nothing but Python itself.

    python3 pdf_tools.py check                              what is here, what does which job, what is missing
    python3 pdf_tools.py info FILE                          pages, size, title, encryption
    python3 pdf_tools.py read FILE [--pages 1-3,7]          the text, on standard output
    python3 pdf_tools.py split FILE OUT --pages 1-3,7       a new PDF of these pages
    python3 pdf_tools.py make SOURCE OUT                    a PDF from text, or from html, docx, odt, md ...

`--tool NAME` takes a certain program instead of the first that is there. An existing OUT is kept
unless --force is given. Exit codes: 0 done, 1 failed, 2 usage, 3 nothing installed can do it.
Plain text becomes a PDF without any program; everything else needs one of those that check names.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

TIMEOUT = 300  # seconds for one program
GET = {  # how to get what is missing
    "poppler": "apt install poppler-utils · brew install poppler · winget install oschwartz10612.Poppler",
    "qpdf": "apt install qpdf · brew install qpdf · winget install QPDF.QPDF",
    "mutool": "apt install mupdf-tools · brew install mupdf-tools",
    "pypdf": "pip install pypdf",
    "libreoffice": "apt install libreoffice · brew install --cask libreoffice",
    "pandoc": "apt install pandoc texlive · brew install pandoc basictex",
}
PACKAGE = {"pdftotext": "poppler", "pdfinfo": "poppler"}  # where the tool's name is another
PLAIN = {".txt", ".text", ".log", ".csv", ""}  # endings of what needs no program to become a PDF


class Failed(Exception):
    """What went wrong, in words for the caller; args[1], if any, is the exit code."""


def has_module(name):
    return importlib.util.find_spec(name) is not None


def program(tool):
    """The path of a program, or None."""
    return shutil.which(tool) or (tool == "libreoffice" and shutil.which("soffice")) or None


def installed(tool):
    """Whether a program, a Python module or the built-in way is there."""
    return tool == "built-in" or (has_module("pypdf") if tool == "pypdf" else bool(program(tool)))


def run(*command):
    """Standard output of a program; Failed with its own words when it fails."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if done.returncode and not (Path(command[0]).name == "qpdf" and done.returncode == 3):  # 3: done, with warnings
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise Failed(f"{command[0]} ended with {done.returncode}: {words[-500:] or 'no message'}")
    return done.stdout.decode("utf-8", "replace")


def page_ranges(spec):
    """'1-3,7' as [(1, 3), (7, 7)]; Failed when it is something else."""
    found = [re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part) for part in spec.split(",")]
    ranges = [(int(part[1]), int(part[2] or part[1])) for part in found if part]
    if len(ranges) != len(found) or any(first < 1 or last < first for first, last in ranges):
        raise Failed(f"--pages {spec}: write pages counted from 1, such as 2 or 1-3,7", 2)
    return ranges


def check_pages(path, pages, last):
    """The wanted ranges, or all pages; Failed when the file has not that many."""
    ranges = page_ranges(pages) if pages else [(1, last)]
    if max(end for _, end in ranges) > last:
        raise Failed(f"{path} has {last} pages; --pages {pages} goes beyond")
    return ranges


# ---------------------------------------------------------------- pypdf


def pypdf_reader(path):
    import pypdf

    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise Failed(f"{path} is encrypted and needs a password")
        return reader
    except Failed:
        raise
    except Exception as error:  # pypdf raises many kinds on a damaged file
        raise Failed(f"pypdf cannot open {path}: {error}") from error


def pypdf_pages(path, pages):
    """The chosen pages; without a choice all of them."""
    reader = pypdf_reader(path)
    ranges = check_pages(path, pages, len(reader.pages))
    return [reader.pages[number - 1] for first, end in ranges for number in range(first, end + 1)]


def split_with_pypdf(source, out, pages):
    import pypdf

    writer = pypdf.PdfWriter()
    for page in pypdf_pages(source, pages):
        writer.add_page(page)
    writer.write(str(out))


def info_with_pypdf(path):
    reader = pypdf_reader(path)
    fields = {"Pages": len(reader.pages), "Encrypted": reader.is_encrypted, **(reader.metadata or {})}
    return "\n".join(f"{name.lstrip('/')}: {value}" for name, value in fields.items())


# ---------------------------------------------------------------- built in


def built_in_info(path):
    """Version, size and a count of pages without a PDF library: right for simple files only."""
    data = Path(path).read_bytes()
    if b"%PDF-" not in data[:1024]:
        raise Failed(f"{path} is not a PDF: it does not begin with %PDF-")
    version = re.search(rb"%PDF-(\d\.\d)", data)
    pages = len(re.findall(rb"/Type\s*/Page(?![A-Za-z])", data))
    count = str(pages) if pages else "unknown (they are in compressed objects)"
    return (f"Pages: {count}\nSize: {len(data)} bytes\nVersion: {version[1].decode() if version else 'unknown'}\n"
            f"Encrypted: {'yes' if b'/Encrypt' in data else 'no'}\n(looked at without a PDF program: a guess)")


WIDTH, HEIGHT, MARGIN, SIZE, LEADING = 595, 842, 57, 10, 12  # points: A4
COLUMNS = int((WIDTH - 2 * MARGIN) / (0.6 * SIZE))  # a Courier character is 0.6 of its size wide
ROWS = (HEIGHT - 2 * MARGIN) // LEADING


def text_pages(text):
    """The lines of each page: long lines are folded, a form feed starts a new page."""
    pages = []
    for part in text.replace("\r\n", "\n").expandtabs(4).split("\f"):
        lines = [piece for line in part.rstrip("\n").split("\n") for piece in textwrap.wrap(
            line, COLUMNS, replace_whitespace=False, drop_whitespace=False) or [""]]
        pages += [lines[start:start + ROWS] for start in range(0, len(lines), ROWS)]
    return pages


def text_pdf(text):
    """The bytes of a PDF that shows a text in Courier, and the characters that this cannot show."""
    lost = sorted({char for char in text if char not in "\n\r\t\f" and not char.encode("cp1252", "ignore")})
    pages = text_pages(text)
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>",
               f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
               b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>"]
    for number, lines in enumerate(pages):
        escaped = (re.sub(rb"([\\()])", rb"\\\1", line.encode("cp1252", "replace")) for line in lines)
        shown = b"\n".join(b"(%s) '" % line for line in escaped)
        start = f"BT /F1 {SIZE} Tf {LEADING} TL {MARGIN} {HEIGHT - MARGIN} Td\n".encode()
        stream = start + shown + b"\nET"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {WIDTH} {HEIGHT}] /Contents {5 + 2 * number} 0 R "
                       "/Resources << /Font << /F1 3 0 R >> >> >>".encode())
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    data, offsets = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"), []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    data += (b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
             % (len(objects) + 1, table, len(objects) + 1, len(data)))
    return bytes(data), lost


def plain_text(source):
    try:
        return source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Failed(f"{source} is not UTF-8 text") from error


def built_in_make(source, out):
    """A PDF that shows the file as plain text; says what it could not show."""
    data, lost = text_pdf(plain_text(source))
    out.write_bytes(data)
    return f"shown as ?: {''.join(lost[:40])}\n{how_to_get('make')}" if lost else ""


# ---------------------------------------------------------------- the jobs


def read_with_pdftotext(path, pages):
    ranges = page_ranges(pages) if pages else [(1, 0)]  # -l 0: to the end
    return "".join(run("pdftotext", "-layout", "-enc", "UTF-8", "-f", first, "-l", last, path, "-")
                   for first, last in ranges)


def read_with_mutool(path, pages):
    mutool_check(path, pages)
    return run("mutool", "draw", "-q", "-F", "txt", path, *([pages] if pages else []))


def mutool_check(path, pages):
    """mutool takes a page that does not exist for an empty one, so they are counted first."""
    count = re.search(r"^Pages: (\d+)", run("mutool", "info", path), re.MULTILINE)
    check_pages(path, pages, int(count[1]) if count else 0)


def read_with_pypdf(path, pages):
    return "\f".join(page.extract_text() for page in pypdf_pages(path, pages))


def split_with_qpdf(source, out, pages):
    run("qpdf", source, "--pages", ".", pages, "--", out)


def split_with_mutool(source, out, pages):
    mutool_check(source, pages)
    run("mutool", "merge", "-o", out, source, pages)


def make_with_libreoffice(source, out):
    with tempfile.TemporaryDirectory() as folder:
        # a profile of its own, because a running LibreOffice would swallow the request
        run(program("libreoffice"), f"-env:UserInstallation={Path(folder, 'profile').as_uri()}", "--headless",
            "--convert-to", "pdf", "--outdir", folder, source)
        made = list(Path(folder).glob("*.pdf"))
        if not made:
            raise Failed(f"LibreOffice made no PDF of {source}; it may not know this kind of file")
        shutil.copyfile(made[0], out)


def make_with_pandoc(source, out):
    run("pandoc", source, "-o", out)


JOBS = {  # per job the ways, best first
    "info": {"pdfinfo": lambda path: run("pdfinfo", path), "mutool": lambda path: run("mutool", "info", path),
             "qpdf": lambda path: "Pages: " + run("qpdf", "--show-npages", path), "pypdf": info_with_pypdf,
             "built-in": built_in_info},
    "read": {"pdftotext": read_with_pdftotext, "mutool": read_with_mutool, "pypdf": read_with_pypdf},
    "split": {"qpdf": split_with_qpdf, "mutool": split_with_mutool, "pypdf": split_with_pypdf},
    "make": {"libreoffice": make_with_libreoffice, "pandoc": make_with_pandoc, "built-in": built_in_make},
}


def how_to_get(job):
    """One line for each package that could do a job."""
    packages = dict.fromkeys(PACKAGE.get(tool, tool) for tool in JOBS[job] if tool != "built-in")
    return f"to {job}, install one of:" + "".join(f"\n  {name:<12} {GET[name]}" for name in packages)


def choose(job, wanted, source):
    """The function and the name of the best way to do a job; Failed, with how to get one, when there is none."""
    ways = JOBS[job]
    if wanted and wanted not in ways:
        raise Failed(f"--tool {wanted} cannot {job}; choose from {', '.join(ways)}", 2)
    if wanted and not installed(wanted):
        raise Failed(f"{wanted} is not installed: {GET[PACKAGE.get(wanted, wanted)]}", 3)
    here = [wanted] if wanted else [tool for tool in ways if installed(tool)]
    if not here:
        raise Failed(f"nothing installed here can {job} a PDF; {how_to_get(job)}", 3)
    if job == "make" and not wanted and source.suffix.lower() in PLAIN:
        enough = "libreoffice" not in here or not text_pdf(plain_text(source))[1]
        here = ["built-in"] if enough else here
    elif job == "make" and here == ["built-in"] and not wanted:
        raise Failed(f"no program here makes a PDF of {source.suffix} (--tool built-in shows it as plain text); "
                     + how_to_get(job), 3)
    return ways[here[0]], here[0]


def check():
    """What is installed, job by job, and how to get the rest."""
    lines = []
    for job, ways in JOBS.items():
        here = [tool for tool in ways if installed(tool)]
        missing = [tool for tool in ways if tool not in here]
        lines.append(f"{job:<6} {'with ' + ', '.join(here) if here else 'NOT POSSIBLE'}"
                     + (f"   (missing: {', '.join(missing)})" if missing else ""))
        if not here:
            lines.append(how_to_get(job))
    lines.append("draw   with reportlab, by a script of your own" if has_module("reportlab") else
                 "draw   NOT POSSIBLE (tables, charts by a script of your own)\n  reportlab    pip install reportlab")
    lines.append("scans  with ocrmypdf: ocrmypdf IN OUT" if shutil.which("ocrmypdf") else "scans  NOT POSSIBLE "
                 "(pages that are pictures)\n  ocrmypdf     apt install ocrmypdf · brew install ocrmypdf")
    return "\n".join(lines)


def perform(options):
    """Does one job; returns what to print and a remark for standard error."""
    if options.job == "check":
        return check(), ""
    source = Path(options.file)
    if not source.is_file():
        raise Failed(f"{source} does not exist or is not a file")
    pages = getattr(options, "pages", None)
    if pages:
        page_ranges(pages)
        pages = pages.replace(" ", "")
    way, tool = choose(options.job, options.tool, source)
    if options.job in ("split", "make"):
        out = Path(options.out)
        if out.exists() and (not options.force or os.path.samefile(source, out)):
            raise Failed(f"{out} exists; choose another name" + ("" if options.force else ", or give --force"))
        remark = way(source, out, pages) if options.job == "split" else way(source, out)
        return f"{out}: {out.stat().st_size} bytes, made with {tool}", remark
    if options.job == "info":
        return way(source).rstrip(), f"(with {tool})"
    text = way(source, pages)
    scanned = "no text in these pages: they are probably pictures; `ocrmypdf IN OUT` adds a text layer"
    return text.rstrip(), f"(with {tool})" if text.strip() else scanned


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = parser.add_subparsers(dest="job", required=True, metavar="check|info|read|split|make")
    jobs.add_parser("check")
    for job, ways in JOBS.items():
        one = jobs.add_parser(job)
        one.add_argument("file")
        one.add_argument("--tool", metavar="NAME", help=f"one of {', '.join(ways)}")
        if job in ("split", "make"):
            one.add_argument("out")
            one.add_argument("--force", action="store_true", help="replace OUT if it exists")
        if job in ("read", "split"):
            one.add_argument("--pages", required=job == "split", metavar="1-3,7")
    return parser.parse_args()


def main():
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    sys.stderr.reconfigure(encoding="utf-8", errors="replace")
    try:
        text, remark = perform(parse())
        print(text, flush=True)
        if remark:
            print(remark, file=sys.stderr)
    except BrokenPipeError:  # whoever read our output, such as head, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Failed, OSError) as error:
        code = error.args[1] if isinstance(error, Failed) and len(error.args) > 1 else 1
        print(f"pdf_tools: {error.args[0] if isinstance(error, Failed) else error}", file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
