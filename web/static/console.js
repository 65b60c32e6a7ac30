// The entry point: makes the page live, shows times in the viewer's zone, and adds keys.
import { follow } from "./live.js";
import { showTimes } from "./times.js";
import { addKeys } from "./keys.js";

showTimes(document);
addKeys();
if (document.body.dataset.live) follow(document.getElementById("main"));
