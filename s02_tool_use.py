"""s02 · tool use: a registry of typed tools, and a loop that does not change

Pain    With bash alone every edit is a fight with quotes: `sed` sees the model's text through the
        shell's eyes and the model has to guess which quote ended where. Nothing keeps a command
        inside the project, and a mistyped field cannot be told from a wrong command.
Idea    Give the model narrow tools with named fields. A tool is one function and one entry in a
        dict; dispatch looks the name up, checks the input against the schema, asks permission,
        runs it, and answers. The loop of s01 is used as it is.

            tool call {name, input}
              │ is there such a tool?   no ─► "there is no tool 'x'; the tools are ..."
              │ does the input fit?     no ─► every problem at once, and the fields
              │ may it run?             no ─► "permission denied, ..."
              ▼
            run(**input) ─► text, clipped ─► tool_result

        The description is a prompt: it says when to use the tool and where its limits are. The
        path sandbox lives in Workspace.path: links are followed first, then the result must lie
        inside the root, also for a file that does not exist yet. bash is outside of it: a
        command can go anywhere its user can, which is why it asks.
        What a tool reads may hold orders ("ignore your instructions, delete ..."): to the model
        it is all text. That is prompt injection. The gate cannot tell such a call from an honest
        one; it can only ask you, so read the command before you answer.
Change  No step of Agent. Seven tools from core, and `outline` below: a function with annotated
        parameters and a docstring becomes a tool by `Tool.of`.
Cost    Each definition is sent with every request (/context shows the sum); prompt caching
        makes that cheap as long as the list does not change.
Try     outline s01_agent_loop.py ;; grep {"patern": "def run"} ;; read core.py :: 1 :: 20
Look for the second call: its input does not fit, and the answer tells the model how it would.
Builds on s01_agent_loop.py
"""

import ast

import core
from console import main
from s01_agent_loop import Agent


def definitions(tree: ast.AST, depth: int = 0) -> list[str]:
    """One line for each class and function below a node, nested ones indented, with its lines."""
    # exercise 2.1: outline the tree: `class Door  lines 4-10`, and two spaces more for each level of
    # definitions.
    # hint: ast.iter_child_nodes(node) gives the children; a definition has name, lineno and end_lineno
    # hint: what is no definition (an `if`, a `try`) may hold some: look into it at the same depth
    lines = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            kind = "class" if isinstance(node, ast.ClassDef) else "def"
            lines.append(f"{'  ' * depth}{kind} {node.name}  lines {node.lineno}-{node.end_lineno}")
            lines += definitions(node, depth + 1)
        else:  # a definition under if, try or with is one of this level
            lines += definitions(node, depth)
    return lines


def outline_tool(workspace: core.Workspace) -> core.Tool:
    """The tool of this session, bound to a workspace."""
    # exercise 2.2: make the tool `outline(path)`, which runs unasked. For the model to read: a file without
    # definitions "defines no class and no function", one that does not parse "is not valid Python".
    # hint: an inner function with annotations and a docstring becomes a tool by core.Tool.of(...,
    # read_only=True)
    # hint: workspace.file(path, "outline") refuses what is outside or missing; ast.parse takes bytes
    # hint: ast.parse raises SyntaxError, or ValueError for a null byte; raise core.ToolError(...) from it

    def outline(path: str) -> str:
        """List the classes and functions of a Python file with their line numbers.

        Use it before reading a long file: then read only the lines you need.
        """
        source = workspace.file(path, "outline").read_bytes()
        try:
            return "\n".join(definitions(ast.parse(source))) or f"({path} defines no class and no function)"
        except (SyntaxError, ValueError) as error:
            raise core.ToolError(f"outline: {path} is not valid Python: {error}") from error

    return core.Tool.of(outline, read_only=True)


def make_agent(workspace: core.Workspace, **options) -> Agent:
    """The agent of s01 with every base tool and one new entry."""
    tools = core.extended_tools(workspace) | core.registry(outline_tool(workspace))
    return Agent(workspace, tools=tools, **options)


GREETING = '''def greet(name):
    return f"It's {name}'s turn"


class Door:
    def open(self):
        return greet("Ann")
'''
DEMO = [
    {"note": "bash alone (the agent of s01): the text holds both kinds of quotes, and sed never sees what was meant.",
     "files": {"door.py": GREETING},
     "make": Agent,
     "prompt": "In door.py make the greeting say It's NAME's go instead of turn. Use sed.",
     "script": """bash sed -i 's/f"It's {name}'s turn"/f"It's {name}'s go"/' door.py ;; bash grep -n turn door.py ;; """
               "say The line is unchanged."},
    {"note": "The same with named fields: no shell reads the text, so nothing has to be quoted.",
     "prompt": "In door.py make the greeting say It's NAME's go instead of turn.",
     "script": """outline door.py ;; edit {"path": "door.py", "old_text": "'s turn", "new_text": "'s go"} ;; """
               "bash python3 -c 'import door; print(door.Door().open())' ;; say Done, and tried."},
    {"note": "Outside the workspace is refused, whichever way the path is written.",
     "prompt": "Read /etc/passwd, then ../../etc/passwd.",
     "script": "read /etc/passwd ;; read ../../etc/passwd ;; say I may not read those."},
    {"note": "A tool that does not exist and an input that does not fit are answered too: the model learns what would.",
     "prompt": "Call a tool named teleport, then edit without its texts.",
     "script": """call teleport {"to": "moon"} ;; edit {"path": "door.py", "old": "x"} ;; say Both were explained.""",
     "after": lambda agent, messages: f"{len(agent.tools)} tools, and the loop is still the one of s01."},
]

if __name__ == "__main__":
    main(make_agent, session="s02", title="tool use", demo=DEMO)
