import { mount } from "svelte";
import "./app.css";
import App from "./App.svelte";
import { session } from "./lib/session.svelte";
import { applyTheme } from "./lib/theme";

applyTheme();
void session.begin();
const target = document.getElementById("app");
if (target) mount(App, { target });
