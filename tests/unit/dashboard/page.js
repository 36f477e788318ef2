// Runs the page's script (its file is the first argument) with as much of a document as it uses, and answers its question
// with the JSON of the second file; then with a failure. Prints what it drew.
const { readFileSync } = require("fs");

class Element {
  constructor(name) { this.name = name; this.children = []; this.text = ""; }
  set textContent(text) { this.text = String(text); this.children = []; }
  append(...children) {
    if (!children.every((child) => child instanceof Element)) throw new Error("only elements are appended");
    this.children.push(...children);
  }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  told() {
    const own = this.name === "meter" ? { count: this.value, of: this.max } : this.text;
    return this.children.length ? [this.name, ...this.children.map((child) => child.told())] : [this.name, own];
  }
}

const state = new Element("p"), main = new Element("main"), timers = [];
global.document = {
  hidden: false,
  createElement: (name) => new Element(name),
  getElementById: (id) => (id === "state" ? state : null),
  querySelector: (name) => (name === "main" ? main : null),
};
global.setTimeout = (work) => timers.push(work);
global.fetch = async () => ({ ok: true, json: async () => JSON.parse(readFileSync(process.argv[3], "utf8")) });
(0, eval)(readFileSync(process.argv[2], "utf8"));

(async () => {
  await timers.shift()();
  const drawn = { state: state.text, main: main.told() };
  global.fetch = async () => { throw new Error("it is gone"); };
  await timers.shift()();
  console.log(JSON.stringify({ ...drawn, later: state.text, main_later: main.told(), waits: timers.length }));
})();
