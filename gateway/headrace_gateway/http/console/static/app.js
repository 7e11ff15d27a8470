// The page: which view is shown, and what is wrong.

import { key } from "./api.js";
import { setText } from "./dom.js";
import { Models } from "./models.js";
import { Overview } from "./overview.js";
import { Playground } from "./playground.js";
import { Requests } from "./requests.js";
import { Status } from "./status.js";

const VIEWS = { overview: Overview, models: Models, requests: Requests, playground: Playground };
const find = (id) => document.getElementById(id);
const status = new Status();
let view = null;
let failure = "";

// Run what the user asked for. A failure is shown; returns whether there was none.
async function report(work) {
  failure = "";
  try {
    await work();
  } catch (error) {
    failure = error.message;
  }
  showProblem();
  return !failure;
}

function showProblem() {
  const text = failure || status.problem?.message || "";
  setText(find("problem"), text);
  find("problem").hidden = !text;
}

function showView() {
  const name = location.hash.slice(1);
  const chosen = name in VIEWS ? name : "overview";
  view?.close();
  view = new VIEWS[chosen](status, report);
  find("view").replaceChildren(view.element);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  failure = "";
  showProblem();
  view.update();
}

function askForKey() {
  find("key-value").value = key.get();
  find("key-dialog").showModal();
}

find("key").addEventListener("click", askForKey);
find("key-dialog").addEventListener("close", () => {
  if (find("key-dialog").returnValue === "use") key.set(find("key-value").value.trim());
  status.ask();
});
status.addEventListener("change", () => {
  setText(find("connection"), status.problem ? "✕ no answer" : `● ${status.server.name}`);
  if (status.problem?.status === 401 && !find("key-dialog").open && !find("key-dialog").dataset.asked) {
    find("key-dialog").dataset.asked = "once";
    askForKey();
  }
  showProblem();
  view.update();
});
addEventListener("hashchange", () => { showView(); find("main").focus(); });
showView();
status.ask();
